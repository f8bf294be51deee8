"""Exploration variants against controls: `overlays -> runs -> sweep -> results -> analysis -> report`, with seeds."""
