"""Reporting: the ledger of finished runs, the tables of the paper, figures, and the HTML page."""
