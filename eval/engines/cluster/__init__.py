"""Ray for sampling: the connection to a cluster, one engine in each worker, and the work that is fed to them."""
