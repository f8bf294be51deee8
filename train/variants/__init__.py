"""Exploration variants against controls: overlays -> runs -> results -> {sweep, analysis -> tables -> report}."""
