"""What a run looks like: pages that need no network, and pictures for papers."""
