"""A trained run in use: predict, embed, search, export."""
