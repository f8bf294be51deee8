"""A `Comparison` for people: one set of tables (`tables`) for the terminal, Markdown, LaTeX and HTML; and as JSON."""
