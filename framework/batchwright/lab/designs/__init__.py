"""Designs of experiments: many runs that answer one question.

``sweep`` compares arms at every point of a grid of settings, ``capacity`` searches the largest load that meets
objectives, ``tune`` the parameters that serve a goal best.
"""
