"""Pure tensor functions, one file a family of losses."""
