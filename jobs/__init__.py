"""The command line and what runs behind it: `activault COMMAND`."""
