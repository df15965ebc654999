"""What things are: the nouns of the project, without input or output, clock or wire."""
