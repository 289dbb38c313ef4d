"""Models and measurements in browsers: bundles, pages, and the local server that gives them out."""
