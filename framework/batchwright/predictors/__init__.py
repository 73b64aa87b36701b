"""The predictors that come with Batchwright, one a file."""
