//! RULER.
