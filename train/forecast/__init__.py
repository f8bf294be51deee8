"""Estimates of memory, time and cost before anything runs."""
