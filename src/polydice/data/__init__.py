"""From the files people have to augmented batches on the device.

`readers` find cases in a folder, `check` opens every one, `prepare` writes them once as arrays of one size or spacing,
`folds` cuts them into parts, `batches` draws from them and `augment` turns and flips whole batches on the device.
"""
