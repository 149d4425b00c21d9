"""A web page and a JSON API for a trained run."""
