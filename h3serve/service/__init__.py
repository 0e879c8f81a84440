"""The long-running side: jobs, workers, HTTP."""
