"""Does speculation leave the text of a user's own pair alone: checks that run the engine and doubt it."""
