"""What commands share: load, servers, texts, tables, the command line. No file here is a command."""
