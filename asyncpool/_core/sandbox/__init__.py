"""What a sandbox is made of: its settings, the plan that workers carry out, and the filter.

Nothing here makes a system call.  ``_runtime/sandbox`` tells what this machine can do, and
``_worker/sandbox`` carries the plan out.
"""
