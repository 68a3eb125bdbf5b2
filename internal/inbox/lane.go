package inbox

// A lane in memory, and every transition of it. Nothing here knows SQL, the writer or the courier. What of a lane is not
// in memory is asked of rows.
