"""One engine per Ray worker, all of them writing parts of the same pool."""
