"""The report: what a work directory's artefacts show, as numbers, figures and one page. No torch."""
