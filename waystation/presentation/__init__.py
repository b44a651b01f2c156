"""View models and formatting of events, calls and recordings, for terminals, web pages and reports.

The command line and the web application import this package. It imports neither of them.
"""
