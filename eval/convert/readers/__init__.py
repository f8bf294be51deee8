"""One file per system: a row of its file as records, each of them one sample."""
