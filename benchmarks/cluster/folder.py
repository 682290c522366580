"""The names by which a trial tells the application in the workers what to do."""

VARIABLE = "ASYNCPOOL_BENCHMARK_FOLDER"
"""The variable of the environment that names the folder of these files."""

START, BROKEN, BEGUN = "start", "broken", "begun"
