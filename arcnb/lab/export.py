class ExportError(ValueError):
    pass


def export_run(run):
    pass
