"""Are two mathematical answers the same? Text in, canonical form or a comparison out."""
