"""From ONNX files to Graft graphs: the file is read, then each operator family is translated."""
