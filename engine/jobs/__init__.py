"""Jobs over files: rows in, results out."""
