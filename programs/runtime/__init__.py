"""What programs are made of: prompts around documents, steps that are not repeated, and the context a program sees."""
