"""Exploration variants against controls: overlays -> runs -> results -> {sweep, plans, analysis -> tables -> report}.

`planned/` judges a sweep that has a plan.
"""
