"""Ordered trees: sorted, stamped key spaces of a namespace; what users do with them, over the store's cells."""
