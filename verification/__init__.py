"""Programs that judge releases: comparisons with google-adk, chaos, planted faults, clusters and deployments."""
