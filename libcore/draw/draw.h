/*
 * draw: graphs and reports.
 *   graph.h    curves, as text for a terminal and as a picture
 *   page.h     reports, as a page for a browser and as Markdown
 *   gnuplot.h  pictures by gnuplot, for the files of this floor only
 */
#pragma once

#include "draw/graph.h"
#include "draw/page.h"
