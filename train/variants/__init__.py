"""Exploration variants against controls: overlays -> runs -> results -> {sweep, plans, analysis -> tables -> report}.

With a plan: exact -> verdicts (by twoway, equal_pass) -> exact_figures -> planned, beside inertness.
"""
