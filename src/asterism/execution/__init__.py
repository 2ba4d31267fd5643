"""How work is executed anywhere: processes, functions, HTTP requests, their inputs and their output.

``actions``            what executes each kind of action, for an orchestrator (``LocalDevice``) and for a device of a
                       fleet (``fleet/device/executor.py``)
``task_inputs``        the inputs of a task: values, references and templates
``command_inputs``     the inputs of a command as variables and files
``artifacts``          the files that tasks make, in a store of content that is named by its hash
``working_folder``     the working folder of a task with files: input files in it, outputs kept from it
``processes``          commands as child processes
``process_guard``      starts child processes, and kills those of a process that dies or is frozen
``guard_main``         the program of the guard
``placeholders``       placeholders of plan files (``{item}``), filled when a task is made
``foreach_expansion``  the tasks of a ``foreach``, from a list
``function_calls``     calls of Python functions, the traceback of one that failed, and what it prints, as its log
``function_modules``   functions by their paths, and their modules, which are imported again after a change
``http_requests``      HTTP requests as tasks

``execution`` imports only ``base`` and ``core``.
"""
