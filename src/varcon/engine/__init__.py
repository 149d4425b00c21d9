"""What turns a method and data into a trained run: the loop and all that touches ranks, devices and files."""
