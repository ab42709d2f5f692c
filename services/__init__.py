"""The services that a dartspec stack is made of."""
