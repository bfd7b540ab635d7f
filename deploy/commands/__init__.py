"""One file per command of `triptych`: its options, and the call that does the work."""
