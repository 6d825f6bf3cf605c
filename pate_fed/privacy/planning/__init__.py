"""Before a study: what a budget affords; and audits of the mechanisms that run."""
