"""Samples of other tools in, pools as other formats out."""
