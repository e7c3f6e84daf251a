"""What turns the models of others into Graft graphs: one folder per format."""
