"""A long load with churn and failures, after which everything is as it was: `make soak`."""
