"""Frontend optimisations: one Graph -> Graph pass per file, run by `pipeline`."""
