"""What the binaries share: flags, errors, searches."""
