"""Plugins that come with the project, written as a stranger's would be: found by entry point, never imported by it."""
