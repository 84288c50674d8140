# Leave-one-out accuracy of k-nearest neighbours: awk -v k=5 -f knn.awk iris.csv
# Prints k, the number of flowers that are told right, and how many there are.
BEGIN { FS = "," }
NR > 1 { n++; for (j = 1; j <= 4; j++) x[n, j] = $j; species[n] = $5 }
END {
    for (i = 1; i <= n; i++) {
        for (m = 1; m <= n; m++) {
            d[m] = 0
            for (j = 1; j <= 4; j++) d[m] += (x[i, j] - x[m, j]) ^ 2
        }
        d[i] = 1e9
        split("", votes)
        for (c = 1; c <= k; c++) {
            best = 1
            for (m = 2; m <= n; m++) if (d[m] < d[best]) best = m
            votes[species[best]]++
            d[best] = 1e9
        }
        winner = ""
        for (s in votes) if (winner == "" || votes[s] > votes[winner] || (votes[s] == votes[winner] && s < winner)) winner = s
        right += (winner == species[i])
    }
    print k, right, n
}
