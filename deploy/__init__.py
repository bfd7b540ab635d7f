"""Where the parts become a cluster: command line, configuration, Ray Serve application, launcher.

The only package that imports Ray, and the only place where names in a configuration become
objects.
"""
