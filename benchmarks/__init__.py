"""What this library costs beside its peers, measured side by side in one run."""
