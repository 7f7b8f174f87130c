"""The path that every API takes: what a request asks for, checked, planned, run and answered."""
